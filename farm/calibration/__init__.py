"""Measures the best speed of a device: `farm calibrate`.

    copies       the configurations of the copy kernel                         pure
    procedure    what is measured, in which order, and within which time       pure (device and clock are passed in)
    scripted     the measurement of a simulated device
    report       the file of a calibration, and its summary                    pure

`farm.child.calibration` measures a real device; `farm.actor.calibration` supervises that; `farm.timing.roof` reads the
resulting curve.
"""
