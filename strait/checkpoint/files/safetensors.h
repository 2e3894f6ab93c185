// The safetensors format: u64 little-endian header length, a JSON header, row-major little-endian
// data without holes. Reader and writer of our own; the reader trusts nothing in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/checkpoint/files/input_file.h"

namespace strait::checkpoint {

/// Longest header that is read or written, in bytes.
inline constexpr int64_t kMaximumHeaderBytes = 100'000'000;
/// Most members that one JSON object of a header may have.
inline constexpr int64_t kMaximumHeaderMembers = 10'000;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// "F32" ... of the format for a dtype: F64 F32 F16 BF16 I64 I32 U8. BOOL is read as U8.
const char* safetensors_dtype(Dtype dtype);

/// One tensor of a file. begin and end are bytes from the start of the data.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> dims;
  int64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  Metadata metadata;                // the strings of "__metadata__"
  std::vector<TensorInfo> tensors;  // in the order of their data
  int64_t data_offset = 0;          // bytes before the data
};

/// Header of a file whose whole contents are `file`. UserError, naming `path` and what is wrong,
/// unless the file is well-formed: header length within the file and kMaximumHeaderBytes; one JSON
/// object without duplicate keys; known dtypes; shapes whose product times the dtype's size is the
/// length of the range (no overflow); ranges that tile the data exactly, without overlap, hole or
/// rest. A tensor with a dim of 0 is legal and takes no bytes.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

/// An open file whose header was checked as above. Thread-safe.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);
  const std::string& path() const { return file_.path(); }
  const InputFile& file() const { return file_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  /// UserError naming the nearest tensor when there is none of that name.
  const TensorInfo& tensor(const std::string& name) const;
  /// Reads a whole tensor; `destination` has its exact length in bytes.
  void read_tensor(const TensorInfo& tensor, std::span<std::byte> destination) const;
  /// Byte of the file at which a tensor begins.
  int64_t offset_of(const TensorInfo& tensor) const { return header_.data_offset + tensor.begin; }
  /// Reads elements from `first_element` on, as many as `destination` holds.
  void read_elements(const TensorInfo& tensor, int64_t first_element,
                     std::span<std::byte> destination) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

/// A tensor to write. `data` is read while writing, never copied as a whole.
struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
};

struct WrittenFile {
  int64_t bytes = 0;
  std::string hash;  // XXH3-128 of the file, taken while writing
};

/// Writes `path` through a temporary file beside it: a reader sees the old file or the whole new
/// one, and the new one is on disk (fsync). The data starts at a multiple of 64 bytes; tensors lie
/// in descending size of dtype, so each is aligned to its element. InputOutputError when the system
/// fails (disk full); the temporary file is removed then. InternalError when a view's length is not
/// its shape's, or a name stands twice. Cost: one pass over the data.
WrittenFile write_safetensors(const std::string& path, std::vector<TensorView> tensors,
                              const Metadata& metadata = {});

}  // namespace strait::checkpoint
