// What tokenizer.json makes of each token on the way back to text: the member "decoder".
#pragma once

#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/tokenizer/subword/vocabulary.h"

namespace strait::subword {

/// The bytes of every token, so that those of a stream can be joined. Added tokens are their text.
/// Supported: Metaspace, WordPiece, Replace of a String, ByteFallback, Fuse, Strip, a Sequence of
/// them, or none. What looks at a whole stream (Strip, Fuse, the clean-up of WordPiece, Metaspace's
/// first space) does nothing, so a text comes back with the space that was put before it.
/// UserError naming the member otherwise.
std::vector<std::string> token_texts(const Json* decoder, const Vocabulary& vocabulary);

}  // namespace strait::subword
