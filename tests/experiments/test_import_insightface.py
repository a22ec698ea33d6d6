from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import import_insightface, insightface_words, loader
from coalface.models import BACKBONES

CONFIG = '''"""A configuration as the field writes them."""
from easydict import EasyDict as edict

config = edict()
config.margin_list = (1.0, 0.0, 0.4)
config.network = "r50"
config.resume = False
config.output = None
config.embedding_size = 512
config.sample_rate = 0.2
config.fp16 = True
config.momentum = 0.9
config.weight_decay = 5e-4
config.batch_size = 128
config.lr = 0.1 * config.batch_size / 256
config.dali = False

config.rec = "faces"
config.num_classes = 93431
config.num_image = 5179510
config.num_epoch = 20
config.warmup_epoch = 2
config.gradient_acc = 3
config.val_targets = ['lfw', "cfp_fp"]
'''


def written(folder: Path, text: str) -> Path:
    path = folder / "ms1mv3_r50.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("margins", "loss"),
    [
        ((1.0, 0.5, 0.0), {"name": "arcface", "scale": 64.0, "margin": 0.5}),
        ([1, 0, 0.4], {"name": "cosface", "scale": 64.0, "margin": 0.4}),
        ((1.0, 0.0, 0.0), {"name": "softmax", "scale": 64.0}),
        ((2, 0, 0), {"name": "sphereface", "scale": 64.0, "margin_factor": 2}),
    ],
)
def test_a_margin_list_is_the_loss_of_its_one_margin(margins: Any, loss: dict[str, Any]) -> None:
    assert insightface_words.loss_of(margins) == loss
    loader.parse({"loss": loss})


@pytest.mark.parametrize(
    "margins", [(1.0, 0.5, 0.1), (2, 0, 0.1), (1.0, 0.5), "abc", None, (1, 0, 0, 0), ("x", 0, 0), (1.5, 0, 0)]
)
def test_a_margin_list_that_is_no_loss_here_is_refused(margins: Any) -> None:
    with pytest.raises(RecipeError, match="margin_list"):
        insightface_words.loss_of(margins)


def test_the_words_stand_for_keys_of_a_recipe() -> None:
    recipe = loader.parse({"margin_list": [1.0, 0.5, 0.0], "embedding_size": 64, "sample_rate": 0.5})
    plain = {
        "loss": {"name": "arcface", "scale": 64.0, "margin": 0.5},
        "model": {"embedding_size": 64},
        "local": {"sample_rate": 0.5},
    }
    assert recipe.digest() == loader.parse(plain).digest()


@pytest.mark.parametrize("word", insightface_words.WORDS)
def test_a_word_and_its_key_at_once_are_refused(word: str) -> None:
    words = {"margin_list": [1, 0.5, 0], "embedding_size": 64, "sample_rate": 0.5, "val_targets": []}
    key = {"loss": {}, "model": {"embedding_size": 128}, "local": {"sample_rate": 0.1}, "evaluation": {"pairs": {}}}
    with pytest.raises(RecipeError) as error:
        insightface_words.translate_words({**key, word: words[word]})
    assert error.value.where == word


def test_targets_without_a_folder_say_what_to_give() -> None:
    with pytest.raises(RecipeError, match="data.faces"):
        loader.parse({"val_targets": ["lfw"]})
    with pytest.raises(RecipeError, match="val_targets"):
        loader.parse({"val_targets": "lfw", "data": {"faces": {"kind": "folder", "path": "faces"}}})


def test_a_configuration_is_read_without_being_run(tmp_path: Path) -> None:
    config = import_insightface.read_config(written(tmp_path, CONFIG))
    assert config["margin_list"] == (1.0, 0.0, 0.4) and config["val_targets"] == ["lfw", "cfp_fp"]
    assert config["lr"] == 0.1 * 128 / 256 and config["output"] is None and config["fp16"] is True


@pytest.mark.parametrize(
    "line",
    [
        'config.lr = __import__("os").system("touch canary")',
        "for i in range(3):\n    config.x = i",
        "config.a = config.b = 1",
        "config.x = config.unknown * 2",
        "config.x = 'a' * 100000000000",
        "config.x = 1 / 0",
        "config['x'] = 1",
        "config.x = other.a",
    ],
)
def test_what_is_not_a_plain_value_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, f"config.a = 1\n{line}\n")
    with pytest.raises(RecipeError) as error:
        import_insightface.read_config(path)
    assert error.value.where == f"{path}, line 2"
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("text", ["", "x = (", "\0", "config = edict()\n", None])
def test_a_file_without_a_configuration_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "missing.py" if text is None else written(tmp_path, text)
    with pytest.raises(RecipeError) as error:
        import_insightface.read_config(path)
    assert error.value.where.split(", line")[0] == str(path)


@settings(max_examples=10, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "c.py"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert import_insightface.read_config(path)
    except RecipeError as error:
        assert "c.py" in str(error)


def test_a_translated_configuration_is_a_recipe_and_says_what_it_lacks(tmp_path: Path) -> None:
    recipe, remarks = import_insightface.translate(import_insightface.read_config(written(tmp_path, CONFIG)))
    assert (recipe["method"], recipe["rounds"], recipe["model"]) == ("centralized", 20, {"name": "ir50"})
    assert recipe["local"] == {"epochs": 1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 128, "lr": 0.05} | {
        "schedule": "cosine"
    }
    assert recipe["data"]["faces"] == {"kind": "rec", "path": "faces"}
    assert recipe["engine"] == {"autocast": "bfloat16"} and recipe["sample_rate"] == 0.2
    first_words = [remark.split()[0].strip(":") for remark in remarks]
    assert first_words == ["batch_size", "fp16", "warmup_epoch", "the", "gradient_acc"]
    text = import_insightface.as_recipe(tmp_path / "ms1mv3_r50.py")
    assert yaml.safe_load(text) == {"name": "ms1mv3_r50", **recipe}
    assert text.startswith("# From insightface's ms1mv3_r50.py") and "# - warmup_epoch" in text


def test_every_network_that_is_named_is_here() -> None:
    assert set(import_insightface.NETWORKS.values()) <= BACKBONES.keys()
    with pytest.raises(RecipeError, match="'r100'"):
        import_insightface.translate({"network": "r1000"})


def test_sampling_with_several_rows_a_class_is_an_error_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match="local.sample_rate: SubCenterArcFace"):
        loader.parse({"loss": {"name": "subcenter-arcface"}, "sample_rate": 0.5})
    assert loader.parse({"loss": {"name": "subcenter-arcface"}, "sample_rate": 1.0}).local.sample_rate == 1.0


@pytest.mark.parametrize("value", ["'a'", "[1]", "2j", "1e999"])
def test_a_value_of_another_type_names_the_file(tmp_path: Path, value: str) -> None:
    path = written(tmp_path, f"config.num_epoch = {value}\n")
    with pytest.raises(RecipeError) as error:
        import_insightface.as_recipe(path)
    assert error.value.where == str(path)


def test_products_of_products_do_not_grow(tmp_path: Path) -> None:
    lines = ["config.x0 = 9", *(f"config.x{i + 1} = config.x{i} * config.x{i}" for i in range(40))]
    with pytest.raises(RecipeError) as error:  # 9 to the 2⁴ is below 2⁶³, to the 2⁵ it is not
        import_insightface.read_config(written(tmp_path, "\n".join(lines)))
    assert error.value.where.endswith("line 7")


def test_a_value_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="ms1mv3_r50"):
        import_insightface.read_config(written(tmp_path, f"config.a = 1\nconfig.b = {'+'.join(['config.a'] * 3000)}\n"))


def test_a_value_that_has_no_counterpart_is_not_shown(tmp_path: Path) -> None:
    secrets = 'config.wandb_key = "S3CRET"\nconfig.wandb = {"api": [{"secret": "S3CRET"}]}\n'
    text = import_insightface.as_recipe(written(tmp_path, CONFIG + secrets))
    assert "# - wandb_key has no counterpart here." in text and "S3CRET" not in text
    for line in ('config["api_key"] = "S3CRET"', 'config.key = config.b = "S3CRET"', 'config.token += "S3CRET"'):
        with pytest.raises(RecipeError, match="line 2: ") as error:
            import_insightface.read_config(written(tmp_path, f"config.a = 1\n{line}\n"))
        assert "S3CRET" not in str(error.value)


def test_a_configuration_can_have_another_name(tmp_path: Path) -> None:
    path = written(tmp_path, "cfg = edict()\ncfg.lr = 0.1\ncfg.b = cfg.lr\n")
    assert import_insightface.read_config(path) == {"lr": 0.1, "b": 0.1}


@pytest.mark.parametrize("line", ["config.rec = None", "", 'config.rec = "synthetic"'])
@pytest.mark.parametrize("targets", ["[]", "['lfw']"])
def test_a_configuration_without_images_gets_a_recipe_that_runs_and_a_remark(
    tmp_path: Path, line: str, targets: str
) -> None:
    text = import_insightface.as_recipe(
        written(tmp_path, f"config.network = 'r18'\n{line}\nconfig.val_targets = {targets}\n")
    )
    assert "rec names no training images" in text and ("val_targets are left out" in text) == (targets != "[]")
    recipe = loader.parse(yaml.safe_load(text))
    assert recipe.data.faces.kind == "synthetic" and recipe.evaluation.pairs == {}
