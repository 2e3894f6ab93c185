// run.toml and --set into a Run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strait/config/problems.h"
#include "strait/config/run.h"

namespace strait {

/// Reads a run file, then applies `sets` ("key=value", typed by the key, lists as TOML or separated
/// by commas). model.preset fills the model's keys that are not written; `file` is the name for
/// messages. Values are not checked against ranges: validate_run does. Setting one of
/// cluster.preset, cluster.file and cluster.levels by --set replaces what the file chose; two of
/// them by --set are refused. Errors: UserError with file, line, key and the nearest valid key or
/// the wanted and the found type; what comes from --set has the file "--set" and no line.
Run parse_run(std::string_view text, const std::string& file,
              const std::vector<std::string>& sets = {});

/// The same, with all that is wrong in `problems`; what could not be read keeps its default.
Run parse_run(std::string_view text, const std::string& file, const std::vector<std::string>& sets,
              Problems& problems);

/// parse_run of a file's contents.
Run load_run(const std::string& path, const std::vector<std::string>& sets = {});

/// The same on a cluster by --cluster, a preset or file, instead of the one that the file or `sets`
/// choose. UserError where a --set names another one, which could not take effect.
Run load_run_on(const std::string& cluster, const std::string& path,
                const std::vector<std::string>& sets);

/// The --set that makes `preset_or_file` the cluster. UserError names the nearest preset when it is
/// neither a preset nor looks like a path.
std::string cluster_setting(const std::string& preset_or_file);

}  // namespace strait
