"""Models of the Hugging Face Hub, named hf:OWNER/REPO[:FILE][@REVISION] in place of a file, through huggingface_hub."""

from bitnet_core.hub.cache import CachedModel, Removal, cached_models, removal, remove
from bitnet_core.hub.families import PublishedFamily, families
from bitnet_core.hub.fetch import local, pull
from bitnet_core.hub.reference import Reference, is_reference

__all__ = [
    "CachedModel",
    "PublishedFamily",
    "Reference",
    "Removal",
    "cached_models",
    "families",
    "is_reference",
    "local",
    "pull",
    "removal",
    "remove",
]
