// Runs gnuplot as a child process, and writes texts for its scripts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strait::report {

/// Any text as a gnuplot string that holds nothing but it: control characters become spaces. Where
/// it is shown, `noenhanced` belongs behind it.
std::string quoted(const std::string& text);

/// Runs gnuplot (a name looked up in PATH or a path) on scripts in `folder`; its messages go to
/// gnuplot.log there. Blocks until it ends. PlotterError when it cannot be started or fails.
void run_gnuplot(const std::string& gnuplot, const std::filesystem::path& folder,
                 const std::vector<std::string>& scripts);

}  // namespace strait::report
