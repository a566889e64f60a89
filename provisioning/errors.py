"""The one exception of this package."""

from __future__ import annotations


class ProvisioningError(Exception):
    """Work that failed at run time.

    Its message reads `<where>: <what must hold> (got <what came>). <What to do>.`
    """
