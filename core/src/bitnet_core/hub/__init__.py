"""Models of the Hugging Face Hub: hf:OWNER/REPO[:FILE][@REVISION] in place of a file. huggingface_hub does the work."""

from bitnet_core.hub.cache import CachedModel, cached_models
from bitnet_core.hub.fetch import local, pull
from bitnet_core.hub.reference import Reference, is_reference

__all__ = ["CachedModel", "Reference", "cached_models", "is_reference", "local", "pull"]
