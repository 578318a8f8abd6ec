"""ImageNet in every form it comes in; `open_imagenet` recognises which."""

from decodeonce.prep.sources.imagenet.archive import ImagenetTarSource
from decodeonce.prep.sources.imagenet.files import ImagenetFlatSource, ImagenetSource
from decodeonce.prep.sources.imagenet.kaggle import ImagenetZipSource
from decodeonce.prep.sources.imagenet.recognise import open_imagenet

__all__ = ["ImagenetFlatSource", "ImagenetSource", "ImagenetTarSource", "ImagenetZipSource", "open_imagenet"]
