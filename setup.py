"""Wheels with compiled kernels carry the tag of their platform, ZOSAM_PLATFORM: see `make wheel`."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

PLATFORM = os.environ.get("ZOSAM_PLATFORM", "")  # such as manylinux_2_17_x86_64


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(PLATFORM)


class Wheel(bdist_wheel):
    """No code for one Python alone, but libraries for one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", PLATFORM) if PLATFORM else super().get_tag()


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
