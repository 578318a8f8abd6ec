"""Sources for every form in which ImageNet is distributed; `recognise.open_imagenet` detects the form."""
