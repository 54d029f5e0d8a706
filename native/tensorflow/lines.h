// The lines of graphs. A line is known by its text, which means the same in every process: graphs are saved, and
// loaded by others.
#pragma once

#include <string>

#include "lines/line.h"

namespace slipstream::tensorflow {

// The group of a line, of the job as it is now: a new reference. Throws Failure.
using Finder = slipstream_group* (*)(const std::string& line);

// The line of this name; made at the first call.
lines::Line& line_of(const std::string& name, Finder find);
// Harmless if there is none.
void forget_line(const std::string& name);

}  // namespace slipstream::tensorflow
