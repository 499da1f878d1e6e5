from tests.client.fake_daemon import main

main("gateway")
