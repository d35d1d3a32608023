"""What runs beside a device and never opens it.

`device` is the actor: takes leases, hands outputs to the judge.  `placed` is its device on this node (configuration,
bundles, identity, admission), `environment` which Python or container a child gets, `supervise` starts a child, talks
to it and ends it, `calibrating` follows a calibration, `trials` the trial of a capture, `captures` knows what cannot be
captured in a graph, and `notes` hands that to the next actor of the device.
"""
