"""All forms, and the images that tests write in them."""

from tests.forms import boxed, folder, imagenet, listed, parquet, webdataset
from tests.forms.form import Form, Pic
from tests.images import jpeg

# The forms without boxes, by name.
PLAIN_FORMS: dict[str, Form] = {
    form.name: form for form in (*folder.FORMS, *imagenet.FORMS, *listed.FORMS, *webdataset.FORMS, *parquet.FORMS)
}
FORMS = [*PLAIN_FORMS.values(), *boxed.FORMS]
WNIDS = ["n01440764", "n01443537", "n01484850"]  # the ILSVRC2012_IDs are 449, 450 and 442
# Not in the order of classes or names, and with classes of different sizes.
PICS = [
    Pic(WNIDS[label], f"{WNIDS[label]}_{number}", jpeg(30 + 7 * number, 40 + 5 * label, seed=10 * label + number))
    for number, labels in enumerate([(2, 0, 1), (1, 2, 0), (0, 2), (2,), (0,)])
    for label in labels
]
