// Errors that know a key but not the run file, completed by where it is written.
#pragma once

#include "strait/base/errors.h"
#include "strait/config/run.h"

namespace strait {

/// Gives a place with a key and no file the file and line of the key in `run`.
void complete_place(const Run& run, ErrorPlace& place);

/// The error with its place completed. One about data, whose file it names, is placed where the run
/// file writes the key (data.path, when that key is not written), and the message names the data's
/// file; where a line of the data is known, that stays, and the message names the run file.
UserError in_run_file(const Run& run, const UserError& error);

/// Runs `body`; its errors are completed so.
template <class Body>
auto with_place(const Run& run, const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    throw in_run_file(run, error);
  } catch (Error& error) {
    complete_place(run, error.place());
    throw;
  }
}

}  // namespace strait
