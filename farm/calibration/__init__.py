"""What a device can do at best: `farm calibrate`.

    copies         the configurations of the copy kernel           pure
    copy_kernels   the copy kernels (Triton)
    procedure      what is measured, in which order, how it is cut short    pure: the device and its clock are handed in
    device         the same on a torch device, by the farm's timing policies
    supervised     one calibration seen from the supervisor
    scripted       the same on backend `sim`
    report         the file of a calibration, and what a terminal is told   pure

The curve is read by `farm.timing.roof`.
"""
