// The parts of the binding of Session; one file each.
#pragma once

#include <nanobind/nanobind.h>

#include "session/session.h"

namespace slipstream {

using SessionClass = nanobind::class_<Session>;

nanobind::dict dict_of(const LinkStatistics& link);

void bind_calls(nanobind::module_& m, SessionClass& session);        // operations
void bind_told(nanobind::module_& m, SessionClass& session);         // operations of which ranks bring different sizes
void bind_observation(nanobind::module_& m, SessionClass& session);  // statistics, timeline, reports

}  // namespace slipstream
