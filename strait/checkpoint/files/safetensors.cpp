#include "strait/checkpoint/files/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "strait/base/errors.h"
#include "strait/base/json.h"

namespace strait::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format and the code are little-endian");

constexpr int64_t kLengthBytes = 8;
constexpr std::array kDtypes = {Dtype::kFloat64, Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16,
                                Dtype::kInt64,   Dtype::kInt32,   Dtype::kByte};

[[noreturn]] void malformed(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: not a valid safetensors file: {}", path, what), place);
}

/// Checks the header length that stands in the first bytes of a file of `file_bytes` bytes.
int64_t header_length(std::string_view first, int64_t file_bytes, const std::string& path) {
  if (file_bytes < kLengthBytes)
    malformed(path, fmt::format("{} bytes long, shorter than the 8 bytes of the header length",
                                file_bytes));
  uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof length);
  if (length > static_cast<uint64_t>(kMaximumHeaderBytes))
    malformed(path, fmt::format("header length {} exceeds {}", length, kMaximumHeaderBytes));
  if (length < 2) malformed(path, fmt::format("header length {} is too short for JSON", length));
  if (length > static_cast<uint64_t>(file_bytes - kLengthBytes))
    malformed(path, fmt::format("truncated: header of {} bytes, but only {} bytes follow", length,
                                file_bytes - kLengthBytes));
  return static_cast<int64_t>(length);
}

/// Refuses objects with more members than a real file has: looking them up is quadratic, and a
/// hostile header of 100 MB could hold 16 million.
void check_member_counts(std::string_view text, const std::string& path) {
  std::vector<int64_t> members(1, 0);
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      members.push_back(0);
    } else if (c == '}' && members.size() > 1) {
      members.pop_back();
    } else if (c == ':' && ++members.back() > kMaximumHeaderMembers) {
      malformed(path, fmt::format("an object of the header has more than {} members",
                                  kMaximumHeaderMembers));
    }
  }
}

Dtype parse_dtype(const std::string& word) {
  if (word == "BOOL") return Dtype::kByte;  // masks in files of others; never written
  std::vector<std::string> known;
  for (const Dtype dtype : kDtypes) {
    if (word == safetensors_dtype(dtype)) return dtype;
    known.emplace_back(safetensors_dtype(dtype));
  }
  throw UserError(fmt::format("dtype {} is not one of {}", word, fmt::join(known, " ")));
}

/// Bytes of a shape, or nothing on overflow.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& dims, Dtype dtype) {
  // A dim of 0 makes the product 0 whatever the others are.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : dims)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return bytes;
}

void check_members(const Json& entry) {
  for (const auto& [key, value] : entry.as_object())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      throw UserError(fmt::format("unknown key \"{}\"", key));
}

/// One entry of the header. Throws UserError without a place; the caller names file and tensor.
TensorInfo parse_tensor(const std::string& name, const Json& entry, int64_t data_bytes) {
  check_members(entry);
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = parse_dtype(entry.at("dtype").as_string());
  for (const Json& dim : entry.at("shape").as_array()) {
    tensor.dims.push_back(dim.as_integer());
    if (tensor.dims.back() < 0)
      throw UserError(fmt::format("dim {} is negative", dim.as_integer()));
  }
  const Json::Array& offsets = entry.at("data_offsets").as_array();
  if (offsets.size() != 2)
    throw UserError(fmt::format("data_offsets has {} numbers, not 2", offsets.size()));
  tensor.begin = offsets[0].as_integer();
  tensor.end = offsets[1].as_integer();
  if (tensor.begin < 0 || tensor.begin > tensor.end)
    throw UserError(fmt::format("data_offsets [{}, {}] is no range", tensor.begin, tensor.end));
  if (tensor.end > data_bytes)
    throw UserError(
        fmt::format("data_offsets [{}, {}] is out of range: the file holds {} bytes of data",
                    tensor.begin, tensor.end, data_bytes));
  const std::optional<int64_t> bytes = shape_bytes(tensor.dims, tensor.dtype);
  const std::string shape = fmt::format("shape [{}] of {}", fmt::join(tensor.dims, ", "),
                                        safetensors_dtype(tensor.dtype));
  if (!bytes) throw UserError(shape + " overflows 64 bits");
  if (*bytes != tensor.end - tensor.begin)
    throw UserError(fmt::format("{} needs {} bytes, data_offsets [{}, {}] give {}", shape, *bytes,
                                tensor.begin, tensor.end, tensor.end - tensor.begin));
  return tensor;
}

/// The tensors, sorted, must tile [0, data_bytes).
void check_tiling(const std::vector<TensorInfo>& tensors, int64_t data_bytes,
                  const std::string& path) {
  int64_t expected = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.begin < expected)
      malformed(path, fmt::format("tensor \"{}\" at byte {} overlaps \"{}\", which ends at byte {}",
                                  tensor.name, tensor.begin, tensors[i - 1].name, expected));
    if (tensor.begin > expected)
      malformed(path, fmt::format("hole of {} bytes before tensor \"{}\" at byte {}",
                                  tensor.begin - expected, tensor.name, tensor.begin));
    expected = tensor.end;
  }
  if (expected < data_bytes)
    malformed(path, fmt::format("{} trailing bytes belong to no tensor", data_bytes - expected));
}

SafetensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& path) {
  if (text.front() != '{') malformed(path, "the header does not start with '{'");
  // A JSON parser may take a zero byte for the end and hide what follows it.
  if (text.find('\0') != std::string_view::npos) malformed(path, "the header holds a zero byte");
  check_member_counts(text, path);
  const Json json = Json::parse(text, path);
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + static_cast<int64_t>(text.size());
  for (const auto& [name, entry] : json.as_object()) {
    try {
      if (name == "__metadata__") {
        for (const auto& [key, value] : entry.as_object())
          header.metadata.emplace_back(key, value.as_string());
      } else {
        header.tensors.push_back(parse_tensor(name, entry, data_bytes));
      }
    } catch (const UserError& error) {
      malformed(path, fmt::format("entry \"{}\": {}", name, error.what()));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_tiling(header.tensors, data_bytes, path);
  return header;
}

SafetensorsHeader read_header(const InputFile& file) {
  std::array<std::byte, kLengthBytes> first{};
  if (file.bytes() >= kLengthBytes) file.read_at(0, first);
  const std::string_view view(reinterpret_cast<const char*>(first.data()), first.size());
  const int64_t length = header_length(view, file.bytes(), file.path());
  std::string text(static_cast<size_t>(length), '\0');
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file.bytes() - kLengthBytes - length, file.path());
}

}  // namespace

const char* safetensors_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kByte:
      return "U8";
    case Dtype::kInt32:
      return "I32";
    case Dtype::kInt64:
      return "I64";
    case Dtype::kFloat16:
      return "F16";
    case Dtype::kBfloat16:
      return "BF16";
    case Dtype::kFloat32:
      return "F32";
    case Dtype::kFloat64:
      return "F64";
  }
  throw InternalError("safetensors: unknown dtype");
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  const int64_t length = header_length(file, file_bytes, path);
  return parse_header(file.substr(kLengthBytes, static_cast<size_t>(length)),
                      file_bytes - kLengthBytes - length, path);
}

SafetensorsFile::SafetensorsFile(std::string path)
    : file_(std::move(path)), header_(read_header(file_)) {}

const TensorInfo& SafetensorsFile::tensor(const std::string& name) const {
  for (const TensorInfo& candidate : header_.tensors)
    if (candidate.name == name) return candidate;
  std::vector<std::string> names;
  for (const TensorInfo& candidate : header_.tensors) names.push_back(candidate.name);
  const std::string nearest = nearest_choice(name, names);
  ErrorPlace place;
  place.file = path();
  throw UserError(
      fmt::format("{} holds no tensor \"{}\"{}", path(), name,
                  nearest.empty() ? "" : fmt::format("; the nearest is \"{}\"", nearest)),
      place);
}

void SafetensorsFile::read_tensor(const TensorInfo& tensor,
                                  std::span<std::byte> destination) const {
  ensure(static_cast<int64_t>(destination.size()) == tensor.end - tensor.begin,
         "read_tensor: the destination has another length than the tensor");
  file_.read_at(header_.data_offset + tensor.begin, destination);
}

void SafetensorsFile::read_elements(const TensorInfo& tensor, int64_t first_element,
                                    std::span<std::byte> destination) const {
  const int64_t begin = tensor.begin + first_element * dtype_bytes(tensor.dtype);
  ensure(first_element >= 0 && begin + static_cast<int64_t>(destination.size()) <= tensor.end,
         "read_elements: the elements are not all in the tensor");
  file_.read_at(header_.data_offset + begin, destination);
}

}  // namespace strait::checkpoint
