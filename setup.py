"""Lists the packages; everything else is in setup.cfg.

`packages = find:` of setup.cfg cannot name a package whose directory has another name:
experiments/ of the checkout is tfcap/experiments/ of a wheel.
"""

import setuptools

setuptools.setup(
    packages=[*setuptools.find_packages(include=["tfcap", "tfcap.*"]), "tfcap.experiments"]
)
