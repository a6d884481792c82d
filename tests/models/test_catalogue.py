from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.catalogue import EXTRA, TINY, WHEELS, resolve
from gaudi_validate.models.fetch import KNOWN
from gaudi_validate.models.specs import ModelSpec
from gaudi_validate.models.tiny import MODELS
from gaudi_validate.scenarios.matrix import MATRIX

if TYPE_CHECKING:
    from pathlib import Path


def test_names_need_no_torch() -> None:
    code = "import sys; from gaudi_validate.models.catalogue import TINY, resolve; resolve(TINY[0]); "
    code += "print([m for m in ('torch', 'transformers', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tiny_names_resolve_with_their_features() -> None:
    assert {name: sorted(resolve(name).features) for name in (*TINY, *EXTRA)} == {
        "tiny-llama": ["gqa"],
        "tiny-mistral": ["gqa", "window"],
        "tiny-mixtral": ["gqa", "moe"],
        "tiny-gemma2": ["alternate windows", "gqa", "own scale", "softcap", "window"],
        "tiny-qwen3": ["gqa", "qk-norm"],
        "tiny-qwen3-moe": ["gqa", "moe", "qk-norm"],
        "tiny-phi3": ["gqa", "partial rotary", "rope scaling"],
        "tiny-gpt-neox": ["partial rotary"],
        "tiny-llama-linear": ["gqa", "rope scaling"],
        "tiny-llama-dynamic": ["gqa", "rope scaling"],
        "tiny-llama-yarn": ["gqa", "rope scaling"],
        "tiny-llama-llama3": ["gqa", "rope scaling"],
        "tiny-llama-mha": [],
        "tiny-llama-mqa": ["mqa"],
        "tiny-llama-one-layer": ["mqa"],
        "tiny-gpt2": ["learned positions"],
        "tiny-gpt-oss": ["alternate windows", "gqa", "moe", "rope scaling", "sinks", "window"],
    }
    assert all(resolve(name).source == "tiny" for name in MODELS)
    assert not set(EXTRA) & set(TINY)


def test_what_scenarios_need_is_a_feature_of_some_model() -> None:
    features = frozenset().union(*(resolve(name).features for name in TINY))
    assert {word for scenario in MATRIX for word in scenario.needs} <= features


def test_fetched_names_are_those_that_can_be_fetched() -> None:
    assert set(WHEELS) == set(KNOWN)
    assert resolve("smollm2-135m").source == "wheel"


def test_hub_ids_and_folders(tmp_path: Path) -> None:
    assert resolve("org/some-Model.v1") == ModelSpec(
        name="org/some-Model.v1", source="hub", location="org/some-Model.v1"
    )
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert resolve(str(folder)) == ModelSpec(name="my-model", source="path", location=str(folder))


def test_a_folder_that_looks_like_a_hub_id_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model").source == "path"


@pytest.mark.parametrize("name", ["tiny-lama", "", "a/b/c", "org/", "https://hub/x/y", "org/na me"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(name)
    known = ", ".join((*MODELS, "smollm2-135m"))
    assert str(caught.value) == f"unknown model: {name!r}; use a folder, a hub id (org/name), or one of {known}"


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "../nowhere-either"])
def test_a_missing_path_is_one_line(name: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(name)
    assert str(caught.value) == f"no such model folder: {name.removeprefix('./')}; " + (
        "give a folder with config.json and *.safetensors"
    )
