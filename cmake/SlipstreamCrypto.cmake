# OpenSSL's libcrypto (3.0 or newer), as the target slipstream_crypto. The static one where it can be linked into a shared
# object as it is: then a wheel needs no OpenSSL, and meets no other copy of it (SlipstreamModule.cmake hides its
# symbols). Else the shared one.

include(CheckCXXSourceCompiles)

find_path(SLIPSTREAM_CRYPTO_INCLUDE openssl/evp.h)
find_library(SLIPSTREAM_CRYPTO_STATIC libcrypto.a)
find_library(SLIPSTREAM_CRYPTO_SHARED libcrypto.so)

set(CMAKE_REQUIRED_INCLUDES "${SLIPSTREAM_CRYPTO_INCLUDE}")
set(CMAKE_REQUIRED_FLAGS -fPIC)
set(CMAKE_REQUIRED_LINK_OPTIONS -shared -Wl,-z,defs)
set(SLIPSTREAM_CRYPTO_PROGRAM
    "#include <openssl/evp.h>
     bool digest(unsigned char* out) {
       return EVP_Q_digest(OSSL_LIB_CTX_new(), \"SHA256\", nullptr, \"\", 0, out, nullptr) == 1;
     }")
set(SLIPSTREAM_CRYPTO "")
if(SLIPSTREAM_CRYPTO_INCLUDE AND SLIPSTREAM_CRYPTO_STATIC)
  set(CMAKE_REQUIRED_LIBRARIES "${SLIPSTREAM_CRYPTO_STATIC}" Threads::Threads ${CMAKE_DL_LIBS})
  check_cxx_source_compiles("${SLIPSTREAM_CRYPTO_PROGRAM}" SLIPSTREAM_CRYPTO_STATIC_WORKS)
  if(SLIPSTREAM_CRYPTO_STATIC_WORKS)
    set(SLIPSTREAM_CRYPTO "${SLIPSTREAM_CRYPTO_STATIC}")
  endif()
endif()
if(NOT SLIPSTREAM_CRYPTO AND SLIPSTREAM_CRYPTO_INCLUDE AND SLIPSTREAM_CRYPTO_SHARED)
  set(CMAKE_REQUIRED_LIBRARIES "${SLIPSTREAM_CRYPTO_SHARED}")
  check_cxx_source_compiles("${SLIPSTREAM_CRYPTO_PROGRAM}" SLIPSTREAM_CRYPTO_SHARED_WORKS)
  if(SLIPSTREAM_CRYPTO_SHARED_WORKS)
    set(SLIPSTREAM_CRYPTO "${SLIPSTREAM_CRYPTO_SHARED}")
  endif()
endif()
foreach(name INCLUDES FLAGS LINK_OPTIONS LIBRARIES)
  unset(CMAKE_REQUIRED_${name})
endforeach()
if(NOT SLIPSTREAM_CRYPTO)
  message(FATAL_ERROR "slipstream needs OpenSSL's libcrypto, 3.0 or newer, with its headers: "
                      "install libssl-dev (Debian, Ubuntu) or openssl-devel (Fedora)")
endif()

add_library(slipstream_crypto INTERFACE)
target_include_directories(slipstream_crypto SYSTEM INTERFACE "${SLIPSTREAM_CRYPTO_INCLUDE}")
target_link_libraries(slipstream_crypto INTERFACE "${SLIPSTREAM_CRYPTO}" Threads::Threads ${CMAKE_DL_LIBS})
