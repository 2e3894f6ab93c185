#include "strait/comm/communicator.h"

#include "strait/codec/borders.h"
#include "strait/codec/runs.h"

namespace strait::comm {

void add_to_ledger(const Call& call, int64_t level, int64_t bytes, Ledger& ledger) {
  int64_t metadata = 0;
  if (call.piece_bytes > 0)
    metadata = bytes / call.piece_bytes * codec::scale_bytes(call.codec, call.piece_bytes);
  ledger.add({operation_name(call.operation), level, codec::without_borders(call.codec),
              bytes - metadata, metadata, 1},
             {call.step, call.outlives});
}

}  // namespace strait::comm
