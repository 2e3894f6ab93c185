// What is wrong with a run file: all of it, where an exception would end at the first.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "strait/base/errors.h"

namespace strait {

class Problems {
 public:
  /// Runs `check` and keeps the UserError that it throws. Other errors pass.
  template <class Check>
  void attempt(const Check& check) {
    try {
      check();
    } catch (const UserError& error) {
      found_.push_back(error);
    }
  }

  /// In the order in which they were found.
  const std::vector<UserError>& found() const { return found_; }

  /// Whether one is about a key that begins with `prefix`, so that no check may build on it.
  bool concern(std::string_view prefix) const {
    return std::any_of(found_.begin(), found_.end(), [prefix](const UserError& error) {
      return error.place().key && error.place().key->starts_with(prefix);
    });
  }

  /// For callers to whom one is enough.
  void throw_first() const {
    if (!found_.empty()) throw found_.front();
  }

 private:
  std::vector<UserError> found_;
};

}  // namespace strait
