#include "strait/data/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr int kGzipOnly = 15 + 16;  // zlib: largest window, gzip header required
constexpr size_t kChunkBytes = size_t{1} << 18;

class Inflater {
 public:
  Inflater(std::string_view bytes, const std::string& name, const ChunkSink& sink)
      : bytes_(bytes), name_(name), sink_(sink) {
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw InternalError("zlib: inflateInit2 failed");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void run() {
    while (member()) {
      const size_t next = bytes_.find_first_not_of('\0', position_);
      if (next == std::string_view::npos) return;
      if (!is_gzip(bytes_.substr(position_)))
        fail(next, "something that is not gzip follows the last gzip member");
      inflateReset(&stream_);
    }
  }

 private:
  /// False when the sink wants no more.
  bool member() {
    int status = Z_OK;
    while (status != Z_STREAM_END) {
      const size_t left = bytes_.size() - position_;
      if (left == 0) fail(position_, "the gzip data ends too early (truncated file)");
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes_.data() + position_));
      stream_.avail_in =
          static_cast<uInt>(std::min<size_t>(left, std::numeric_limits<uInt>::max()));
      const uInt offered = stream_.avail_in;
      do {
        stream_.next_out = reinterpret_cast<Bytef*>(chunk_.get());
        stream_.avail_out = static_cast<uInt>(kChunkBytes);
        status = inflate(&stream_, Z_NO_FLUSH);
        if (!sink_({chunk_.get(), kChunkBytes - stream_.avail_out})) return false;
      } while (status == Z_OK && stream_.avail_out == 0);
      position_ += offered - stream_.avail_in;
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
        fail(position_, fmt::format("the gzip data is corrupt ({})",
                                    stream_.msg != nullptr ? stream_.msg : "no details"));
    }
    return true;
  }

  [[noreturn]] void fail(size_t offset, const std::string& what) const {
    ErrorPlace place;
    place.file = name_;
    throw UserError(fmt::format("{}: at byte {}: {}", name_, offset, what), place);
  }

  std::string_view bytes_;
  const std::string& name_;
  const ChunkSink& sink_;
  z_stream stream_{};
  // One for all members, of which a file may have one per few bytes, and not filled with zeros.
  std::unique_ptr<char[]> chunk_ = std::make_unique_for_overwrite<char[]>(kChunkBytes);
  size_t position_ = 0;
};

}  // namespace

bool is_gzip(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b';
}

std::string gunzip(std::string_view bytes, const std::string& name, int64_t most_bytes) {
  std::string out;
  gunzip_chunks(bytes, name, [&](std::string_view chunk) {
    if (static_cast<int64_t>(out.size() + chunk.size()) > most_bytes) {
      ErrorPlace place;
      place.file = name;
      throw UserError(fmt::format("{}: its {} bytes unpack to more than {}, the most that is read",
                                  name, bytes.size(), most_bytes),
                      place);
    }
    out += chunk;
    return true;
  });
  return out;
}

void gunzip_chunks(std::string_view bytes, const std::string& name, const ChunkSink& sink) {
  Inflater(bytes, name, sink).run();
}

}  // namespace strait
