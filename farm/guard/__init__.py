"""What guards a device and the times taken on it: its lock, its telemetry, its memory, and whether a time can be true.

    device      the Guard: lock, telemetry and memory of one actor's device
    locks       one farm at a time on a physical device
    telemetry   what the device said of itself, and whether a time may count      pure
    watch       the thread that reads it
    plausible   what the supervisor's clock says of a child's samples              pure

Imports nothing here: backends import the types of `telemetry`, and `device` imports backends.
"""
