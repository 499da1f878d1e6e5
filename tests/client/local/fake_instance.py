from tests.client.local.fake_daemon import main

main("instance")
