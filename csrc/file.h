// A file that several threads read at once, each at its own place: POSIX and Windows.
// Includes nothing of CUDA.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace livevoice {

/// path: UTF-8, on Windows too.
class File {
  public:
    explicit File(const std::string& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    /// Reads exactly `bytes` at `offset`; false when that fails or the file ends before.
    bool read(void* to, size_t bytes, int64_t offset) const;
    const std::string& path() const { return path_; }

  private:
    [[noreturn]] void fail(const std::string& why) const {
        throw std::runtime_error("checkpoint: can't open " + path_ + ": " + why);
    }

    std::string path_;
#ifdef _WIN32
    HANDLE handle_ = INVALID_HANDLE_VALUE;
#else
    int handle_ = -1;
#endif
};

#ifdef _WIN32

inline File::File(const std::string& path) : path_(path) {
    const int size = static_cast<int>(path.size());
    std::wstring wide(MultiByteToWideChar(CP_UTF8, 0, path.data(), size, nullptr, 0), L'\0');
    MultiByteToWideChar(CP_UTF8, 0, path.data(), size, wide.data(), static_cast<int>(wide.size()));
    // Others may rename or delete it meanwhile, as they may on POSIX.
    const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    handle_ = CreateFileW(wide.c_str(), GENERIC_READ, share, nullptr, OPEN_EXISTING,
                          FILE_ATTRIBUTE_NORMAL, nullptr);
    if (handle_ == INVALID_HANDLE_VALUE) fail("Windows error " + std::to_string(GetLastError()));
}

inline File::~File() { CloseHandle(handle_); }

inline bool File::read(void* to, size_t bytes, int64_t offset) const {
    while (bytes > 0) {
        OVERLAPPED place{};  // the offset travels with the call: no shared file position
        place.Offset = static_cast<DWORD>(offset);
        place.OffsetHigh = static_cast<DWORD>(offset >> 32);
        const DWORD wanted = static_cast<DWORD>(std::min<size_t>(bytes, 1u << 30));
        DWORD n = 0;
        if (!ReadFile(handle_, to, wanted, &n, &place) || n == 0) return false;
        to = static_cast<char*>(to) + n;
        offset += n;
        bytes -= n;
    }
    return true;
}

#else

inline File::File(const std::string& path) : path_(path) {
    handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (handle_ < 0) fail(std::strerror(errno));
}

inline File::~File() { close(handle_); }

inline bool File::read(void* to, size_t bytes, int64_t offset) const {
    while (bytes > 0) {
        const ssize_t n = pread(handle_, to, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to = static_cast<char*>(to) + n;
        offset += n;
        bytes -= n;
    }
    return true;
}

#endif

}  // namespace livevoice
