#include "bindings/module.h"

NB_MODULE(_core, m) {
  m.doc() = "slipstream's native core: kernels, plans, sessions.";
  slipstream::bind_errors(m);
  slipstream::bind_kernels(m);
  slipstream::bind_session(m);
  slipstream::bind_completions(m);
}
