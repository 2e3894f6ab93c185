#include "strait/device/require_codec.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/codec/element.h"

namespace strait::device {

using codec::CodecKind;
using codec::CodecSpec;

void require_tensor_codec(const CodecSpec& spec, const std::string& key) {
  const bool known = codec::is_integer(spec.kind) || spec.kind == CodecKind::kE3m0 ||
                     spec.kind == CodecKind::kQsgd;
  if (known && !spec.asymmetric && !spec.stochastic) return;
  CodecSpec nearest = spec;
  nearest.asymmetric = nearest.stochastic = false;
  if (!known) nearest = codec::parse_codec("int8");
  ErrorPlace place;
  if (!key.empty()) place.key = key;
  throw UserError(
      fmt::format("codec {} has no form for tensors of any device; nearest valid choice: {}",
                  codec::print_codec(spec), codec::print_codec(nearest)),
      place);
}

}  // namespace strait::device
