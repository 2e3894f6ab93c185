#include "strait/comm/mpi/messages.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::comm {
namespace {

/// MPI itself is one per process, and so is its lock.
std::mutex& mpi_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

std::unique_lock<std::mutex> lock_mpi() { return std::unique_lock<std::mutex>(mpi_mutex()); }

Messages::Messages(MPI_Comm communicator) : communicator_(communicator) {
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  int* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(communicator, MPI_TAG_UB, &value, &found);
  if (found) largest_tag_ = *value;
}

void Messages::check(int code, const char* what) const {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, kind = 0;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string message = std::string(what) + ": " + std::string(text, length);
  if (kind == MPI_ERR_TRUNCATE)
    throw UserError("the members disagree: a longer message came than this call expects (" +
                    message + ")");
  throw InternalError(message);
}

Message Messages::send(const void* data, int64_t bytes, int64_t to, int tag, int64_t piece_bytes) {
  Message message;
  message.peer = to;
  message.done = bytes == 0;
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  for (int64_t at = 0; at < bytes; at += piece_bytes) {
    const int64_t piece = std::min(piece_bytes, bytes - at);
    message.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Isend(static_cast<const char*>(data) + at, static_cast<int>(piece), MPI_BYTE,
                    static_cast<int>(to), tag, communicator_, &message.requests.back()),
          "MPI_Isend");
    message.handed += piece;
  }
  return message;
}

Message Messages::receive(void* data, int64_t bytes, int64_t from, int tag, int64_t piece_bytes) {
  Message message;
  message.peer = from;
  message.expected = bytes;
  message.done = bytes == 0;
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  for (int64_t at = 0; at < bytes; at += piece_bytes) {
    message.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(static_cast<char*>(data) + at,
                    static_cast<int>(std::min(piece_bytes, bytes - at)), MPI_BYTE,
                    static_cast<int>(from), tag, communicator_, &message.requests.back()),
          "MPI_Irecv");
  }
  return message;
}

bool Messages::test(Message& message) {
  Message* const one = &message;
  return message.done || test({&one, 1}) == 1;
}

int64_t Messages::test(std::span<Message* const> messages) {
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  asked_.clear();
  places_.clear();
  owners_.clear();
  for (Message* message : messages)
    for (MPI_Request& request : message->requests) {
      if (request == MPI_REQUEST_NULL) continue;
      asked_.push_back(request);
      places_.push_back(&request);
      owners_.push_back(message);
    }
  ended_.resize(asked_.size());
  statuses_.resize(asked_.size());
  int ended = 0;
  const int code = MPI_Testsome(static_cast<int>(asked_.size()), asked_.data(), &ended,
                                ended_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (int at = 0; at < ended; ++at) check(statuses_[at].MPI_ERROR, "MPI_Testsome");
  else
    check(code, "MPI_Testsome");
  int64_t done = 0;
  for (int at = 0; at < ended; ++at) {
    *places_[ended_[at]] = MPI_REQUEST_NULL;
    Message& message = *owners_[ended_[at]];
    take(message, statuses_[at]);
    if (std::any_of(message.requests.begin(), message.requests.end(),
                    [](MPI_Request request) { return request != MPI_REQUEST_NULL; }))
      continue;
    message.done = true;
    ++done;
    if (message.arrived != message.expected)
      throw UserError("the members disagree: " + std::to_string(message.arrived) +
                      " bytes came from rank " + std::to_string(message.peer) +
                      ", this call expects " + std::to_string(message.expected));
  }
  return done;
}

void Messages::take(Message& message, const MPI_Status& status) const {
  if (message.expected == 0) return;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  message.arrived += bytes;
}

bool Messages::receive_waiting(void* data, int64_t bytes, int tag) {
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  int found = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator_, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  if (found)
    check(MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, MPI_ANY_SOURCE, tag, communicator_,
                   MPI_STATUS_IGNORE),
          "MPI_Recv");
  return found != 0;
}

std::optional<std::string> Messages::receive_waiting_text(int tag, int64_t& from) {
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  int found = 0, bytes = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator_, &found, &status), "MPI_Iprobe");
  if (!found) return std::nullopt;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  std::string text(static_cast<size_t>(bytes), '\0');
  from = status.MPI_SOURCE;
  check(MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, tag, communicator_,
                 MPI_STATUS_IGNORE),
        "MPI_Recv");
  return text;
}

void Messages::cancel(Message& message) {
  const std::lock_guard<std::mutex> lock(mpi_mutex());
  for (MPI_Request& request : message.requests)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  message.requests.clear();
  message.done = true;
}

}  // namespace strait::comm
