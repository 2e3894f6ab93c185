// The only file that includes nlohmann-json: it parses; writing is done here.
#include "strait/base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr size_t kDepthLimit = 200;

const char* type_name(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_bool()) return "a boolean";
  if (json.is_integer()) return "an integer";
  if (json.is_number()) return "a number";
  if (json.is_string()) return "a string";
  return json.is_array() ? "an array" : "an object";
}

[[noreturn]] void wrong_type(const char* wanted, const Json& found) {
  throw UserError(fmt::format("JSON: expected {}, found {}", wanted, type_name(found)));
}

/// Length of the valid UTF-8 sequence at `text[i]`, 0 when invalid.
size_t sequence_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
  const uint8_t first = byte(i);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  if (length == 3 &&
      ((first == 0xe0 && byte(i + 1) < 0xa0) || (first == 0xed && byte(i + 1) > 0x9f)))
    return 0;
  if (length == 4 &&
      ((first == 0xf0 && byte(i + 1) < 0x90) || (first == 0xf4 && byte(i + 1) > 0x8f)))
    return 0;
  return length;
}

void write_string(std::string_view text, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = sequence_length(text, i);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      ++i;
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
    } else {
      out.append(text.substr(i, length));
    }
    i += length;
  }
  out += '"';
}

void write(const Json& json, int indent, int depth, std::string& out) {
  const auto line = [&](int d) {
    if (indent >= 0) {
      out += '\n';
      out.append(static_cast<size_t>(indent) * d, ' ');
    }
  };
  if (json.is_null()) {
    out += "null";
  } else if (json.is_bool()) {
    out += json.as_bool() ? "true" : "false";
  } else if (json.is_integer()) {
    out += std::to_string(json.as_integer());
  } else if (json.is_number()) {
    const double value = json.as_number();
    out += std::isfinite(value) ? fmt::format("{}", value) : "null";
  } else if (json.is_string()) {
    write_string(json.as_string(), out);
  } else if (json.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& element : json.as_array()) {
      if (!first) out += indent >= 0 ? "," : ", ";
      first = false;
      line(depth + 1);
      write(element, indent, depth + 1, out);
    }
    if (!first) line(depth);
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, element] : json.as_object()) {
      if (!first) out += indent >= 0 ? "," : ", ";
      first = false;
      line(depth + 1);
      write_string(key, out);
      out += ": ";
      write(element, indent, depth + 1, out);
    }
    if (!first) line(depth);
    out += '}';
  }
}

/// Builds a Json from parse events; an explicit stack keeps deep input from exhausting ours.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override {
    return add(Json(static_cast<int64_t>(value)));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value > INT64_MAX ? Json(static_cast<double>(value))
                                 : Json(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(false); }
  bool start_array(size_t) override { return open(true); }
  bool key(string_t& value) override {
    if (!stack_.back().keys.insert(value).second) {
      error_ = "the key \"" + value + "\" stands twice in one object";
      return false;
    }
    stack_.back().key = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    error_ = fmt::format("at byte {}: {}", position, e.what());
    return false;
  }
  Json take() { return std::move(result_); }
  const std::string& error() const { return error_; }

 private:
  /// An array or object that is not closed yet.
  struct Frame {
    bool is_array;
    Json::Array elements;
    Json::Object members;
    std::string key;  // of the member that comes next
    std::unordered_set<std::string>
        keys;  // so that a vocabulary of 50,000 tokens is not searched for each
  };
  bool add(Json&& value) {
    if (stack_.empty()) {
      result_ = std::move(value);
    } else if (stack_.back().is_array) {
      stack_.back().elements.push_back(std::move(value));
    } else {
      stack_.back().members.emplace_back(std::move(stack_.back().key), std::move(value));
    }
    return true;
  }
  bool open(bool is_array) {
    if (stack_.size() >= kDepthLimit) {
      error_ = "nested more than 200 deep";
      return false;
    }
    stack_.push_back({is_array, {}, {}, {}, {}});
    return true;
  }
  bool close() {
    Frame done = std::move(stack_.back());
    stack_.pop_back();
    return add(done.is_array ? Json(std::move(done.elements))
                             : Json::from_members(std::move(done.members)));
  }
  std::vector<Frame> stack_;
  Json result_;
  std::string error_;
};

}  // namespace

bool Json::as_bool() const {
  if (!is_bool()) wrong_type("a boolean", *this);
  return std::get<bool>(value_);
}
int64_t Json::as_integer() const {
  if (!is_integer()) wrong_type("an integer", *this);
  return std::get<int64_t>(value_);
}
double Json::as_number() const {
  if (is_integer()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_number()) wrong_type("a number", *this);
  return std::get<double>(value_);
}
const std::string& Json::as_string() const {
  if (!is_string()) wrong_type("a string", *this);
  return std::get<std::string>(value_);
}
const Json::Array& Json::as_array() const {
  if (!is_array()) wrong_type("an array", *this);
  return std::get<Array>(value_);
}
const Json::Object& Json::as_object() const {
  if (!is_object()) wrong_type("an object", *this);
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : std::get<Object>(value_))
    if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) return *found;
  throw UserError(fmt::format("JSON: the key \"{}\" is missing", key));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  if (!is_object()) wrong_type("an object", *this);
  auto& members = std::get<Object>(value_);
  for (auto& [name, value] : members)
    if (name == key) return value;
  members.emplace_back(std::string(key), Json());
  return members.back().second;
}

void Json::push_back(Json element) {
  if (is_null()) value_ = Array{};
  if (!is_array()) wrong_type("an array", *this);
  std::get<Array>(value_).push_back(std::move(element));
}

size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  return is_object() ? std::get<Object>(value_).size() : 0;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(*this, indent, 0, out);
  return out;
}

Json Json::parse(std::string_view text, const std::string& name) {
  // nlohmann takes a zero byte for the end of the input; what follows must not go unseen.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    ErrorPlace place;
    place.file = name;
    throw UserError(fmt::format("{}: not valid JSON: a zero byte at byte {}", name, zero), place);
  }
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    ErrorPlace place;
    place.file = name;
    throw UserError(fmt::format("{}: not valid JSON: {}", name, builder.error()), place);
  }
  return builder.take();
}

}  // namespace strait
