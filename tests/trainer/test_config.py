"""run.toml: what is refused and how, what may change on a resume."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from trainer.config import RunConfig, checked, keys, load, to_toml
from trainer.errors import ChangedConfig, ConfigError
from trainer.resume import Resume, changes, refuse_inexact

SMALL = {
    "run": {"dir": "runs/a"},
    "data": {"corpus": "corpus"},
    "train": {"steps": 10, "global_batch": 8, "micro_batch": 4},
}


def config(**sections: dict[str, object]) -> RunConfig:
    return checked(
        {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}, "test"
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optim": {"lrr": 1e-3}}, "optim.lrr: no such key; did you mean 'lr'?"),
        ({"optm": {}}, "optm: no such key; did you mean 'optim'?"),
        ({"train": {"globl_batch": 3}}, "train.globl_batch: no such key; did you mean 'global_batch'?"),
        ({"log": {"zzz": 3}}, "log.zzz: no such key; known keys: every_steps, sample_ids"),
        ({"optim": {"lr": "fast"}}, "optim.lr: Input should be a valid number"),
        ({"train": {"steps": 0}}, "train.steps: Input should be greater than or equal to 1, got 0"),
        ({"model": {"width": 30}}, "width must be a multiple of 2 x heads"),
        ({"model": {"kind": "hf"}}, "model.path names a Hugging Face model"),
        ({"model": {"path": "x"}}, "model.path names a Hugging Face model"),
        ({"optim": {"betas": (1.5, 0.9)}}, "optim.betas.0: Input should be less than 1"),
        ({"optim": {"lr": float("inf")}}, "optim.lr: Input should be a finite number"),
        ({"run": {"threads": 100_000}}, "run.threads: Input should be less than or equal to 4096"),
        ({"train": {"precision": "fp8"}}, "train.precision: Input should be 'fp32' or 'bf16'"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_expected(
    sections: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("world_size", "message"),
    [
        (1, "global_batch 10 is no multiple of ranks x micro_batch = 1 x 4; the nearest that is: 8 or 12"),
        (2, "global_batch 10 is no multiple of ranks x micro_batch = 2 x 4; the nearest that is: 8 or 16"),
        (4, "global_batch 10 is no multiple of ranks x micro_batch = 4 x 4; the nearest that is: 16"),
    ],
)
def test_ranks_micro_batch_and_accumulation_make_up_the_global_batch(world_size: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(train={"global_batch": 10}).accumulation(world_size)
    assert message in str(caught.value)
    assert config(train={"global_batch": 16}).accumulation(world_size) == 4 // world_size


def test_every_wrong_key_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        config(optim={"lrr": 1}, train={"steps": -1})
    assert "optim.lrr" in str(caught.value)
    assert "train.steps" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("[run\n", "not valid TOML"), ("[run]\nseed = 1\n", "run.dir: missing")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "run.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_the_resolved_configuration_reads_back_as_itself() -> None:
    resolved = config(freeze={"patterns": ("a.*", 'quo"te')}).resolved(None)
    assert checked(tomllib.loads(to_toml(resolved)), "test") == resolved
    assert resolved.optim.decay_steps == 10


def test_resolved_paths_do_not_depend_on_where_a_command_runs() -> None:
    resolved = config().resolved(None)
    assert resolved.run.dir.is_absolute()
    assert resolved.data.corpus.is_absolute()


def test_the_configuration_in_a_runs_folder_belongs_to_that_folder(tmp_path: Path) -> None:
    run = tmp_path / "copied"
    (run / "versions").mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(config()))
    assert load(run / "config.toml").run.dir == run
    (tmp_path / "config.toml").write_text(to_toml(config()))
    assert load(tmp_path / "config.toml").run.dir == Path("runs/a")


def test_a_prolonged_run_keeps_its_schedule() -> None:
    saved = config().resolved(None).plain()
    longer = config(train={"steps": 100}).resolved(saved)
    assert longer.optim.decay_steps == 10
    assert [c.key for c in changes(saved, longer)] == ["train.steps"]
    refuse_inexact(changes(saved, longer), allowed=())


def test_keys_that_weights_do_not_depend_on() -> None:
    free = {key for key, _, exact in keys(config()) if not exact}
    assert free == {
        *("run.dir", "run.threads", "run.device", "data.corpus", "train.steps"),
        *("checkpoint.every_steps", "log.every_steps", "log.sample_ids"),
        *("eval.corpus", "eval.every_steps", "eval.batches"),
    }


def test_a_change_that_breaks_exactness_is_refused_unless_told() -> None:
    saved = config().resolved(None).plain()
    now = config(optim={"lr": 0.5}, run={"seed": 4}, log={"every_steps": 3}).resolved(saved)
    found = changes(saved, now)
    with pytest.raises(ChangedConfig) as caught:
        refuse_inexact(found, allowed=["run.seed"])
    assert "optim.lr: 0.0003 in the version, 0.5 now" in str(caught.value)
    assert str(caught.value).endswith("or accept it with --allow-change optim.lr")
    assert "log.every_steps" not in str(caught.value)
    refuse_inexact(found, allowed=["run.seed", "optim.lr"])


def test_what_cannot_work_is_not_recommended() -> None:
    saved = config().resolved(None).plain()
    now = config(model={"layers": 2}, data={"seq_len": 64}).resolved(saved)
    with pytest.raises(ChangedConfig) as caught:
        refuse_inexact(changes(saved, now), allowed=[])
    assert str(caught.value).endswith("begin another run in another run.dir")


def test_the_command_that_allowed_a_change_goes_on_after_it() -> None:
    saved = config().resolved(None).plain()
    refuse_inexact(changes(saved, config().resolved(saved)), allowed=["optim.lr"])


def test_allowing_a_key_that_is_none_is_a_mistake() -> None:
    with pytest.raises(
        ConfigError, match=r"--allow-change optim\.lrr: no such key; did you mean 'optim\.lr'"
    ):
        Resume.parse("latest", ["optim.lrr"])


@pytest.mark.parametrize("text", ["newest", "0", "-1", "1.5", ""])
def test_a_resume_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected latest, none or a version's number"):
        Resume.parse(text)


def test_resumes() -> None:
    assert Resume.parse("latest") == Resume(None, fresh=False)
    assert Resume.parse("none") == Resume(None, fresh=True)
    assert Resume.parse("12") == Resume(12, fresh=False)
