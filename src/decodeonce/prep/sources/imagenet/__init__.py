"""ImageNet in every form it comes in; `recognise.open_imagenet` tells which."""
