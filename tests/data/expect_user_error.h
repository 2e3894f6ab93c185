// Bad input must be refused with a message that helps.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "strait/base/errors.h"

namespace strait::testing {

/// `action` throws UserError; its message holds every one of `parts`, and its place names `key`.
template <class Action>
void expect_user_error(Action action, std::initializer_list<std::string> parts,
                       const std::string& key = "") {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    EXPECT_EQ(error.place().key.value_or(""), key);
  }
}

}  // namespace strait::testing
