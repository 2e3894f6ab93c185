// What the fuzzer and the corpus test run on arbitrary bytes: parse, validate, print, parse again.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/config/validate.h"

namespace strait {

/// Returns true when the bytes are a run file that parses. Any failure but UserError is a finding,
/// and so is a printed run that does not read back as the same text.
inline bool try_run_file(std::string_view bytes) {
  try {
    parse_cluster_file(bytes, "fuzz", 4);
  } catch (const UserError&) {
  }
  Run run;
  try {
    run = parse_run(bytes, "fuzz");
  } catch (const UserError&) {
    return false;
  }
  const std::string printed = print_run(run);
  if (print_run(parse_run(printed, "printed")) != printed)
    throw std::logic_error("print_run does not read back");
  try {
    run.cluster.file.clear();  // the fuzzer opens no files
    validate_run(run, 4);
  } catch (const UserError&) {
  }
  return true;
}

}  // namespace strait
