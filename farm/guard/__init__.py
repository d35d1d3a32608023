"""Guards a device and the times measured on it: its lock, its telemetry, its memory, and the plausibility of times.

    device          the Guard: lock, telemetry and memory of one actor's device
    locks           one farm at a time on a physical device
    telemetry       what the device reported, and whether a time may count            pure
    sampler         the thread that reads telemetry
    sample_checks   a child's samples, compared with the supervisor's clock           pure

Of `farm.backends` it imports only `api`: the actor passes its backend to the Guard.
"""
