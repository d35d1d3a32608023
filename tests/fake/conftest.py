"""The whole control plane on fakes: real processes, real Ray, devices that obey a script."""

from farm_fixture import farm as farm
