"""Networks by name: ours with settings, the user's own, and errors that help."""

import sys

import pytest
import torch
from torch import nn

from zosam.lab.models import MODELS, build
from zosam.names import summary


def test_every_model_has_a_line_for_the_list():
    assert all(summary(f) and len(summary(f)) < 100 for f in MODELS.values())


def test_ours_with_settings():
    assert build("resnet20", 5).fc.out_features == 5
    model = build("wrn:depth=10,width=1,dropout=0.3", 4)
    assert model.fc.in_features == 64
    assert model.layer1[0].dropout.p == 0.3


def test_unknown_names_and_settings():
    with pytest.raises(ValueError, match="did you mean 'resnet32'"):
        build("resnet33")
    with pytest.raises(ValueError, match="did you mean 'image_size'"):
        build("deit_tiny:imagesize=64")
    with pytest.raises(ValueError, match="no setting 'num_classes'"):
        build("resnet20:num_classes=3")


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def tiny(num_classes): return nn.Linear(4, num_classes)\n"
        "def wrong(num_classes): return 3\n"
        "def fixed(): return nn.Linear(4, 10)\n"
    )
    (tmp_path / "broken_nets.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_nets", "broken_nets"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
def test_the_users_own():
    model = build("my_nets:tiny", 3)
    assert isinstance(model, nn.Linear)
    with pytest.raises(ValueError, match=r"write it as def fixed\(num_classes, \.\.\.\)"):
        build("my_nets:fixed", 3)
    assert model(torch.zeros(1, 4)).shape == (1, 3)
    with pytest.raises(ValueError, match="my_nets has no 'tinny'"):
        build("my_nets:tinny")
    with pytest.raises(ValueError, match="returned int"):
        build("my_nets:wrong")
    with pytest.raises(ValueError, match="no module 'no_such_nets'"):
        build("no_such_nets:tiny")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        build("broken_nets:tiny")


@pytest.mark.parametrize("package", ["timm", "transformers"])
def test_a_package_that_is_not_installed(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"needs {package}: pip install"):
        build(f"{package}:something")
