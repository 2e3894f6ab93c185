// A small JSON value: what the program writes (reports, manifests, metrics) and what it reads back.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace strait {

/// An ordered JSON value. Objects keep insertion order. Non-finite numbers are written as null.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value) : value_(static_cast<int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  template <class T>
  Json(const std::vector<T>& values) : value_(Array(values.begin(), values.end())) {}

  static Json object() { return Json(Object{}, 0); }
  static Json object(std::initializer_list<Member> members) { return Json(Object(members), 0); }
  /// An object of `members`, whose keys are distinct. O(1), where operator[] searches for every new
  /// key.
  static Json from_members(Object members) { return Json(std::move(members), 0); }
  static Json array() { return Json(Array{}); }

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  /// Typed access; throws UserError naming the wanted and the found type.
  bool as_bool() const;
  int64_t as_integer() const;
  double as_number() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;

  /// Member of an object, or nullptr. Cost: O(members).
  const Json* find(std::string_view key) const;
  /// Member of an object; throws UserError naming the missing key.
  const Json& at(std::string_view key) const;
  /// Sets (replaces or appends) a member; a null value becomes an object first.
  Json& operator[](std::string_view key);
  void push_back(Json element);
  size_t size() const;

  /// Text of the value. indent < 0: one line. Doubles round-trip; invalid UTF-8 is replaced by
  /// U+FFFD.
  std::string dump(int indent = -1) const;
  /// Parses text; throws UserError with `name`, and the byte offset in the message. Depth limit
  /// 200.
  static Json parse(std::string_view text, const std::string& name);

 private:
  Json(Object value, int) : value_(std::move(value)) {}
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace strait
