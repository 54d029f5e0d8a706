// The areas of slipstream._core; one file each.
#pragma once

#include <nanobind/nanobind.h>

namespace slipstream {

void bind_c_api(nanobind::module_& m);        // after bind_session()
void bind_completions(nanobind::module_& m);  // after bind_session()
void bind_errors(nanobind::module_& m);
void bind_guarded_calls(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_lightgbm(nanobind::module_& m);
void bind_quick_calls(nanobind::module_& m);  // after bind_session()
void bind_mxnet(nanobind::module_& m);
void bind_options(nanobind::module_& m);  // before bind_session()
void bind_reducers(nanobind::module_& m);
void bind_records(nanobind::module_& m);  // after bind_session()
void bind_session(nanobind::module_& m);

}  // namespace slipstream
