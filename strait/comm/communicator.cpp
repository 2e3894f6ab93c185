#include "strait/comm/communicator.h"

namespace strait::comm {

void add_to_ledger(const Call& call, int64_t level, int64_t bytes, Ledger& ledger) {
  const int64_t metadata =
      call.piece_bytes > 0 ? bytes / call.piece_bytes * call.metadata_bytes : 0;
  ledger.add(operation_name(call.operation), level, call.codec, bytes - metadata, metadata);
}

}  // namespace strait::comm
