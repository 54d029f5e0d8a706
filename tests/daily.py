"""Which variants of a test `make test` runs, where all of them would take long and differ little.

The others have the mark ``slow``: `make test-all` runs them too. `conftest.py` makes this a plugin.
"""

from __future__ import annotations

import pytest

_KERAS = (
    "same_as_one",
    "late_build",
    "kinds",
    "kinds_of_reductions",
    "accumulation",
    "mixed_precision",
    "operations",
    "mistakes",
    "rates",
    "partial",
    "elastic_state",
)

# By file and function: the variants that run daily. With none, the whole test is left to `make test-all`.
DAILY: dict[str, dict[str, tuple[str, ...]]] = {
    "benchmarks/test_benchmarks.py": {"test_ddp_measures_steps_and_compares_parameters": ()},
    "benchmarks/test_reducers.py": {"test_a_rank_measures_all_contenders": ()},
    "tests/bench/test_measurement.py": {
        "test_every_collective_is_measured_and_right": ("all_reduce", "gather"),
        "test_horovod": ("gather",),
        "test_a_rank_that_dies_ends_the_measurement": ("against0",),
        "test_a_wrong_result_is_counted_for_each_contender": ("gather-changes1",),
        "test_all_of_ours_and_types_that_are_not_there": (),
    },
    "tests/bench/train/test_command.py": {
        "test_an_injected_error_is_reported": ("real-gloo-2",),
        "test_against_gloo_with_a_delay": (),
        "test_horovod_where_its_module_is_found": (),
    },
    "tests/comm/negotiation/test_negotiation.py": {
        "test_a_rank_that_has_joined_waits_longer_than_operations_may_take": ("2",),
    },
    "tests/comm/negotiation/test_order.py": {"test_some_schedules": ("0",)},
    "tests/comm/test_conformance.py": {
        "test_collectives_equal_numpy": (
            "1-tcp",
            "1-shm",
            "1-mixed",
            "2-tcp",
            "2-shm",
            "2-mixed",
            "3-mixed",
            "4-tcp",
            "8-shm",
        ),
    },
    "tests/comm/test_extremes.py": {"test_100000_works_in_flight": ("tcp",)},
    "tests/comm/test_lifecycle.py": {
        "test_200_times_init_and_shutdown_leave_nothing": ("tcp-on", "shm-off"),
    },
    "tests/comm/test_memory.py": {"test_what_was_used_once_leaves_few_bytes": ("groups-tcp", "tags-tcp")},
    "tests/comm/test_outages.py": {
        "test_connections_that_break_while_a_card_is_down_are_made_again": ("0-4", "1-0.5"),
        "test_a_stop_of_six_seconds_and_a_reset_cost_nothing": ("1",),
    },
    "tests/comm/test_prescale.py": {"test_a_prescale_copies_no_whole_input": ("mixed-4",)},
    "tests/comm/test_quick_calls.py": {"test_values_and_what_is_refused": ("1-shm", "2-shm", "3-shm")},
    "tests/comm/test_random_operations.py": {
        "test_random_operations_on_overlapping_groups": ("mixed",),
    },
    "tests/comm/test_rendezvous.py": {"test_a_job_starts_again_at_the_same_torch_store": ()},
    "tests/comm/test_single_copy.py": {
        "test_a_rank_that_ends_in_the_middle_is_named": ("9",),
        "test_all_that_moves_is_right": ("2-auto", "3-off", "3-mixed", "4-on", "8-mixed"),
        "test_sums_are_right": ("on-2", "auto-3", "off-3", "auto-4"),
    },
    "tests/comm/test_threads.py": {"test_collectives_equal_numpy_with_io_threads": ("4",)},
    "tests/comm/tuning/test_tuning.py": {
        "test_all_ranks_choose_alike": ("2-500-0", "3-500-0", "4-800-5"),
    },
    "tests/conformance/test_horovod_programs.py": {
        "test_a_program_that_asks_for_more_than_there_is": (),
    },
    "tests/conformance/test_horovod_suite.py": {"test_what_becomes_of_each_test": ()},
    "tests/faces/jax/test_jax.py": {"test_operations": ("3-tcp",)},
    "tests/faces/jax/test_mpi4jax.py": {
        "test_functions": (
            "2-shm-operations",
            "2-shm-dtypes",
            "2-shm-messages communicators mistakes",
            "2-shm-order mapped",
            "2-shm-derivatives",
            "3-tcp-operations",
            "4-mixed-messages communicators mistakes",
        ),
    },
    "tests/faces/keras/test_digits.py": {"test_any_number_of_workers_learns_the_same": ("tensorflow",)},
    "tests/faces/keras/test_keras.py": {
        "test_on_ranks": (
            "tensorflow-check_joins_first",
            *(f"{backend}-check_{what}" for backend in ("tensorflow", "torch", "jax") for what in _KERAS),
        ),
    },
    "tests/faces/keras/test_tf_keras.py": {
        "test_optimizers": (
            "check_same_as_one-optimizers",
            "check_accumulation-optimizers.legacy",
            "check_sparse-optimizers",
            "check_sparse-optimizers.legacy",
            "check_by_hand-optimizers",
            "check_by_hand-optimizers.legacy",
            "check_mixed_precision-optimizers",
        ),
    },
    "tests/faces/tensorflow/test_chosen_threads.py": {
        "test_a_program_chooses_after_init": ("native-function", "negotiated-session"),
    },
    "tests/faces/tensorflow/test_digits.py": {"test_any_number_of_workers_learns_the_same": ("options0",)},
    "tests/faces/test_again.py": {
        "test_200_times_init_and_shutdown_at_4_ranks_leave_nothing": (),
    },
    "tests/faces/test_elastic.py": {
        "test_a_rank_that_goes_back_takes_the_others_along": ("raise-1", "skip-012"),
        "test_one_of_three_dies": ("1-end-case4", "0-1.4-case1"),
        "test_the_launcher_says_how_many_ranks_must_be_left": ("2-sizes1",),
    },
    "tests/faces/test_horovod_examples.py": {
        "test_training_of_a_residual_network_is_resumed": (),
        "test_digits_are_learned_though_a_worker_dies": (),
    },
    "tests/faces/test_interrupted.py": {
        "test_an_interrupted_call_harms_neither_memory_nor_values": (
            "optimizer-shm-14",
            "hvd-shm-2",
            "c10d-shm-14",
            "join-shm-14",
        ),
    },
    "tests/faces/test_jax_devices.py": {
        "test_collectives_are_those_of_numpy": ("2-2-types", "2-2-ways", "2-4-ways", "3-2-meshes"),
    },
    "tests/faces/test_torch_adasum_digits.py": {"test_a_job_ends_where_the_formula_leads": ()},
    "tests/faces/test_torch_apart.py": {
        "test_an_operation_on_one_rank_and_a_step_on_the_other": ("2",),
    },
    "tests/faces/test_torch_compression.py": {
        "test_wires_act_between_hosts": ("int8, error feedback", "bf16", "fp16", "int8"),
    },
    "tests/faces/test_torch_join_first.py": {"test_on_four_ranks": ("check_folds",)},
    "tests/faces/torch_distributed/test_comm_hooks.py": {
        "test_models_learn_alike_on_all_ranks_and_norms_stay_exact": ("topk", "powersgd"),
        "test_the_example_runs_with_replace_gloo": (),
    },
    "tests/faces/torch_distributed/test_wire.py": {
        "test_values": ("bf16-3", "f8-3", "f16-2", "int8-3", "exact-2"),
    },
    "tests/faces/torch_distributed/test_replace.py": {
        "test_a_job_that_communicates_by_gloo_says_so": ("options0-script0-1", "options1-script1-0"),
    },
    "tests/faces/torch_distributed/test_text_examples.py": {"test_the_curve_is_that_of_gloo": ()},
    "tests/lab/test_dscp.py": {
        "test_all_data_of_a_job_has_the_class_that_is_asked_for": ("ipv6-options1-63",),
    },
    "tests/launch/test_agents.py": {
        "test_a_malformed_frame_is_an_error_that_names_the_host": ("0", "3", "7", "10"),
    },
    "tests/launch/test_before_pytorch_meets.py": {
        "test_a_rank_that_does_not_come_to_init_process_group_is_named": ("option0-5",),
        "test_a_rank_that_ends_before_init_process_group_is_named": ("1-slipstream", "0-gloo"),
        "test_ranks_meet_whatever_they_call_themselves_and_as_often_as_they_like": ("renumbered",),
    },
    "tests/launch/test_causes.py": {
        "test_a_job_of_pytorch_names_the_rank_that_raised": ("slipstream",),
        "test_a_mismatch_of_all_ranks_is_told_once": ("torch-True", "numpy-False"),
    },
    "tests/reducer/test_differing.py": {
        "test_a_rank_in_another_operation_is_said_to_be_there": (
            "others-10-gather-gather(",
            "it-100000-receive-recv(from rank ",
        ),
    },
    "tests/reducer/test_hosts.py": {
        "test_all_ranks_have_the_same_bits": ("local_sizes2-2",),
        "test_values": ("local_sizes0-2",),
        "test_a_reducer_is_lost_and_comes_back": ("local_sizes1-1-stop",),
    },
    "tests/reducer/test_job.py": {
        "test_values": ("2-1", "4-3"),
        "test_a_reducer_is_lost_and_comes_back": ("3-2--stop", "2-1---staggered-kill"),
        "test_connections_are_reset": ("3-2-3",),
        "test_groups_of_all_ranks": ("orders-4", "threads-2"),
        "test_works_in_flight_on_the_same_memory": ("late", "mixed"),
    },
    "tests/reducer/test_small.py": {
        "test_scaling_and_many_at_once": ("asynchronous-4-1", "scaled-3-3", "flight-2-1", "others-2-1"),
        "test_a_reducer_is_lost_and_comes_back": ("3-2-1-staggered-kill",),
        "test_values": ("4-3",),
    },
    "tests/soak/test_soak.py": {"test_soak": ("shm",)},
}


# The variants of all tests that were found, by file and function.
FOUND = pytest.StashKey[dict[tuple[str, str], set[str]]]()


def is_daily(file: str, function: str, variant: str) -> bool:
    """Whether `make test` runs this variant of a test; ``variant`` is empty if there is but one."""
    return variant in DAILY.get(file, {}).get(function, (variant,))


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the variants that are left to `make test-all`."""
    found = config.stash.setdefault(FOUND, {})
    for item in items:
        file, _, name = item.nodeid.partition("::")
        function, _, variant = name.partition("[")
        variant = variant.removesuffix("]")
        found.setdefault((file, function), set()).add(variant)
        if not is_daily(file, function, variant):
            item.add_marker(pytest.mark.slow)
