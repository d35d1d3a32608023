"""The process that supervises one device, and never opens it.

device          the actor: takes leases, runs their cells in a child, passes outputs to the judge
device_setup    the device on this node: configuration, bundles, identity, admission
child_manager   starts, keeps and replaces the device's one child
child_process   a child: its command, its messages, its end
calibration     one calibration, seen from the supervisor
capture         which calls can be captured in a graph: trials, policy, and a cache for the device's next actor
backpressure    limits how far a device may be ahead of its judge
event_buffer    the events that the coordinator polls
"""
