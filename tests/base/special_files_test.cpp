// Reading never waits for a file that is none, and writing never replaces one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "tests/data/temporary_folder.h"
#include "tests/unprivileged.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SpecialFiles : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string make_socket() const {
    const int one = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path("socket").c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(one, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::close(one);
    return path("socket");
  }
  void expect_refused(const std::string& path, const std::string& kind) const {
    const auto before = fs::symlink_status(path).type();
    for (const bool writes : {false, true}) try {
        writes ? write_file_atomically(path, "x") : (void)read_file(path);
        ADD_FAILURE() << path;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("is a " + kind));
      }
    EXPECT_EQ(fs::symlink_status(path).type(), before) << path << " was replaced";
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(SpecialFiles, AreRefusedByKindAndStay) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  expect_refused(path("fifo"), "FIFO");
  fs::create_symlink(path("fifo"), path("link"));
  expect_refused(path("link"), "FIFO");
  const std::string device = path("device");
  if (::mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0)  // as root, one like /dev/null
    expect_refused(device, "device");
  try {
    write_file_atomically(make_socket(), "x");
    ADD_FAILURE() << "a socket";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a socket"));
  }
  EXPECT_TRUE(fs::is_socket(path("socket")));
}

TEST_F(SpecialFiles, ALinkStaysAndItsFileIsWritten) {
  write_file_atomically(path("file"), "before");
  fs::create_symlink("file", path("link"));
  write_file_atomically(path("link"), "after");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("file")), "after");
}

TEST_F(SpecialFiles, WhatMayNotBeReadIsThere) {
  fs::create_directory(path("closed"));
  write_file_atomically(path("closed/file"), "x");
  write_file_atomically(path("file"), "x");
  {
    const test::Forbidden forbidden(path("file"));
    EXPECT_THROW(read_file(path("file")), InputOutputError);
    EXPECT_TRUE(path_exists(path("file")));
    EXPECT_FALSE(is_folder(path("file")));
  }
  const test::Forbidden forbidden(path("closed"));
  EXPECT_THROW(read_file(path("closed/file")), InputOutputError);
  EXPECT_THROW(path_exists(path("closed/file")), InputOutputError);
  EXPECT_THROW(is_folder(path("closed/none")), InputOutputError);
  EXPECT_TRUE(is_folder(path("closed")));
  for (const char* nothing : {"none", "none/none", "file/none"}) {
    EXPECT_FALSE(path_exists(path(nothing)));
    EXPECT_THROW(read_file(path(nothing)), UserError);
  }
}

TEST_F(SpecialFiles, ALinkToItselfStays) {
  fs::create_symlink("loop", path("loop"));
  EXPECT_THROW(write_file_atomically(path("loop"), "x"), InputOutputError);
  EXPECT_THROW(read_file(path("loop")), UserError);
  EXPECT_TRUE(fs::is_symlink(path("loop")));
}

}  // namespace
}  // namespace strait
