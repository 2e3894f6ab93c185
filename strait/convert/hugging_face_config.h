// Members of a config.json, whose absence means what transformers takes then.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "strait/base/json.h"

namespace strait::convert {

/// Keeps references: the JSON and the path must outlive it. All members throw UserError naming path
/// and key; `inside` is the object that holds these members, "" for the whole file.
class ForeignConfig {
 public:
  ForeignConfig(const Json& json, const std::string& path, std::string inside = "")
      : json_(json), path_(path), inside_(std::move(inside)) {}

  [[noreturn]] void refuse(const char* key, const std::string& what) const;
  /// Null for absent and null members.
  const Json* find(const char* key) const;
  /// From 1 to the most that `ours`, a key of the run file, may be.
  int64_t integer(const char* key, int64_t otherwise, const char* ours) const;
  /// A number that `ours`, a key of the run file, may be.
  double number(const char* key, double otherwise, const char* ours) const;
  /// Null, or an object; refuses all else.
  const Json* object(const char* key) const;
  /// Above 0 as well, where 0 means something else in ours.
  double positive(const char* key, double otherwise, const char* ours) const;
  bool flag(const char* key, bool otherwise) const;
  void require_flag(const char* key, bool wanted) const;

 private:
  const Json& json_;
  const std::string& path_;
  std::string inside_;
};

}  // namespace strait::convert
