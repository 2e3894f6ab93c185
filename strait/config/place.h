// Errors that know a key but not the run file, completed by where it is written.
#pragma once

#include "strait/base/errors.h"
#include "strait/config/run.h"

namespace strait {

/// Runs `body`. An error about a key that names no file is told file and line of the key in `run`.
template <class Body>
auto with_place(const Run& run, const Body& body) {
  try {
    return body();
  } catch (Error& error) {
    ErrorPlace& place = error.place();
    const auto written = place.key ? run.written.find(*place.key) : run.written.end();
    if (!place.file && written != run.written.end()) {
      place.file = written->second.file;
      if (written->second.line > 0) place.line = written->second.line;
    }
    throw;
  }
}

}  // namespace strait
