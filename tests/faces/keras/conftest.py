"""Ranks with Keras on each of its back ends: processes that stay, since imports take seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from faces.rank_jobs import Ranks

WORKER = Path(__file__).with_name("rank_process.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
SIZES = {"tensorflow": 3, "jax": 2, "torch": 2}


@pytest.fixture(scope="session", params=list(SIZES))
def ranks(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """A job with one of Keras's back ends."""
    backend = request.param
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    folder = tmp_path_factory.mktemp(backend)
    job = Ranks(SIZES[backend], folder, worker=WORKER, environment=QUIET | {"KERAS_BACKEND": backend})
    yield job
    job.stop()


@pytest.fixture(scope="session")
def legacy_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A job with legacy Keras, as ``tf.keras``."""
    pytest.importorskip("tf_keras")
    folder = tmp_path_factory.mktemp("tf_keras")
    environment = QUIET | {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "1"}
    job = Ranks(2, folder, worker=WORKER, environment=environment)
    yield job
    job.stop()
