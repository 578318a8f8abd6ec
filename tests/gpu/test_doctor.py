"""`prep doctor` on a machine with an accelerator."""

import json

import pytest
import torch

from tests.command import prep_process

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="this test needs an accelerator")


def test_doctor_finds_the_devices() -> None:
    checks = {check["name"]: check for check in json.loads(prep_process("doctor", "--json").stdout)["checks"]}
    assert checks["torch"]["level"] == "ok"
    assert f"{torch.accelerator.device_count()} x " in checks["torch"]["found"]
