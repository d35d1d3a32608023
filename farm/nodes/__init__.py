"""The nodes of a cluster: what each says of itself (`config`), how it joins, who is in it."""
