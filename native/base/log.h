// Messages on standard error, with the rank in front.
#pragma once

#include <string>

namespace slipstream {

// `text` may have several lines.
void log_warning(int rank, const std::string& text);
// Shown with SLIPSTREAM_LOG=info alone, or debug.
void log_info(int rank, const std::string& text);
// Shown with SLIPSTREAM_LOG=debug alone.
void log_debug(int rank, const std::string& text);

}  // namespace slipstream
