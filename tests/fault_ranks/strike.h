// Where a rank of a test's run is struck: agreed between the test and the program it starts.
#pragma once

#include <cstdint>
#include <string>

#include "strait/base/json.h"

namespace strait::test {

/// One rank kills or stops itself at one place of its run.
struct Strike {
  int64_t rank = 0, step = 0;
  std::string place;  // compute | transfer | save
  int64_t number =
      0;  // compute: instance of the step's compute operations; save: 0 save, 1 end of the run
  std::string operation;  // transfer: the first of this name in the step
  int signal = 0;
  double hold_seconds = 0;  // at the place before the signal: the other ranks come to a rest
  std::string truth;        // gets the rank's own flight record of that moment
  std::string found;        // a file that is there once the test has found all ranks

  Json json() const {
    return Json::object({{"rank", rank},
                         {"step", step},
                         {"place", place},
                         {"number", number},
                         {"operation", operation},
                         {"signal", static_cast<int64_t>(signal)},
                         {"hold_seconds", hold_seconds},
                         {"truth", truth},
                         {"found", found}});
  }
  static Strike parse(const Json& json) {
    return {json.at("rank").as_integer(),        json.at("step").as_integer(),
            json.at("place").as_string(),        json.at("number").as_integer(),
            json.at("operation").as_string(),    static_cast<int>(json.at("signal").as_integer()),
            json.at("hold_seconds").as_number(), json.at("truth").as_string(),
            json.at("found").as_string()};
  }
};

}  // namespace strait::test
