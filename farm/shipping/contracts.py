"""Sends contracts from outside the farm to whoever judges, and keeps them with a run: as JSON, by content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.contracts import discovery, folders
from farm.errors import InfraError
from farm.shipping import files

#: In a run's folder on a node, and in a run's directory.
NAME = "contracts.json"
#: Base64 of at most MAX_BYTES a folder, and some folders.
MAX_BYTES = 256 << 20
Packed = dict[str, Any]


def pack() -> Packed | None:
    """The outside folders of this process as JSON-able data: content, hash, and what their contracts require; None if
    there are none."""
    found = [
        folder.plain({op: dict(folder.requires.get(op) or discovery.requires(op)) for op in folder.ops})
        for folder in discovery.outside()
    ]
    return {"folders": found} if found else None


def text(packed: Packed) -> str:
    """As it is stored."""
    return json.dumps(packed, sort_keys=True) + "\n"


def parse(stored: str, where: str) -> Packed:
    """What `text` gave.  InfraError if it is something else."""
    try:
        packed: Packed = json.loads(stored)
        if not isinstance(packed["folders"], list):
            raise TypeError("folders is not a list")
        return packed
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(where, error) from None


def install(packed: Mapping[str, Any], place: str | Path) -> None:
    """Unpack under `place`, once per content, and let this process find the ops there and no other outside ones.
    InfraError for content that does not have its hash, or that would leave its folder."""
    discovery.forget()
    for plain in packed["folders"]:
        try:
            folder = folders.unpacked(plain, Path(place, "contracts", str(plain["sha"])[:16]))
            files.write_all(folder.files.items(), folder.path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(str(place), error) from None
        except OSError as error:
            message = f"{place}: contracts cannot be unpacked ({error.strerror or error}); check the disk"
            raise InfraError(message, id="shipping-contracts-unpack") from None
        discovery.add_folder(folder)


def _damaged(where: str, error: Exception) -> InfraError:
    message = f"{where}: the contracts that were sent or kept are damaged ({error}); run again"
    return InfraError(message, id="shipping-contracts-damaged")


def leave(place: str | Path) -> None:
    """Leave the outside contracts of this process in a run's folder, for the judges that it starts there."""
    packed = pack()
    if packed:
        Path(place).mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(place, NAME).write_text(text(packed), encoding="utf-8")


def take(place: str | Path) -> None:
    """`install` what was left in a run's folder, if anything was."""
    found = Path(place, NAME)
    if found.is_file():
        install(parse(found.read_text(encoding="utf-8"), str(found)), place)
