#include "bindings/module.h"

NB_MODULE(_core, m) {
#ifdef NDEBUG
  // Scripts and frameworks often keep groups in globals to the very end. Debug builds, which our tests can use, do
  // tell.
  nanobind::set_leak_warnings(false);
#endif
  m.doc() = "slipstream's native core: kernels, plans, sessions.";
  slipstream::bind_errors(m);
  slipstream::bind_guarded_calls(m);
  slipstream::bind_kernels(m);
  slipstream::bind_lightgbm(m);
  slipstream::bind_options(m);
  slipstream::bind_session(m);
  slipstream::bind_quick_calls(m);
  slipstream::bind_completions(m);
  slipstream::bind_c_api(m);
  slipstream::bind_mxnet(m);
  slipstream::bind_reducers(m);
  slipstream::bind_records(m);
}
